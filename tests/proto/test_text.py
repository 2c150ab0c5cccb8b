"""The prototxt reader: equal to protobuf's where both accept, with the place where it refuses."""

import time
from contextlib import nullcontext

import pytest
from google.protobuf import descriptor_pb2, text_format
from hypothesis import given
from hypothesis import strategies as st

from minicaffe.addons.plotting.parse_log import read_run
from minicaffe.addons.ssd.label_map import read_label_map
from minicaffe.cli.classify import read_labels
from minicaffe.data.image_list import ImageList
from minicaffe.errors import ConfigError, DataError, FileError
from minicaffe.proto import caffe_pb2
from minicaffe.proto.files import MAX_TEXT
from minicaffe.proto.kinds import kind_of
from minicaffe.proto.text import parse_text, read_text, write_text
from minicaffe.proto.text_parser import MAX_TOKENS
from minicaffe.proto.upgrade import load

ACCEPTED = [
    "",
    "# nothing but a comment",
    "name: 'single' # and \"double\"",
    'name: "a" \'b\'\n  "c"',
    "layer { name: 'a' } layer < name: 'b' > layer: { name: 'c' }",
    "layer: [{ name: 'a' }, < name: 'b' >]",
    "input_dim: [1, 2,3] input_dim: 4 input_dim: [] input_dim: 0x1F, input_dim: 017; input_dim: -2",
    "layer { loss_weight: 0 loss_weight: 1 loss_weight: .5 loss_weight: 1. loss_weight: 2.5e-3f loss_weight: -1E+2 }",
    "layer { loss_weight: inf loss_weight: -Infinity loss_weight: INF }",
    "layer { propagate_down: [true, True, t, 1, false, False, f, 0] }",
    "layer { phase: TEST include { phase: 0 } include {} }",
    "layer { convolution_param { num_output: 4294967295 axis: -2147483648 } reshape_param { shape { dim: -1 } } }",
    "state{phase:TRAIN}force_backward:true",
    "layer\n{\r\n\tname\n:\n'a'\r}",
]

COMMENT = "a comment in a prototxt begins with # and ends with its line; write # in place"
REFUSED = [
    ("name: 3", 1, 7, "quoted string"),
    ("name: 'a\n'", 1, 7, "not closed"),
    ("\nname: 'a'\nname: 'b'", 3, 1, "twice"),
    ("state {}\n state {}", 2, 2, "twice"),
    ("layer {\n  convolution_param { num_outputs: 3 } }", 2, 23, "did you mean 'num_output'"),
    ("layer { name: 'a' >", 1, 19, "expected a field or '}'"),
    ("}", 1, 1, "expected a field"),
    ("name 'a'", 1, 6, "expected ':'"),
    ("layer 3", 1, 7, "expected '{'"),
    ("force_backward: yes", 1, 17, "true or false"),
    ("force_backward: 2", 1, 17, "from 0 to 1"),
    ("input_dim: " + "9" * 5000, 1, 12, "5000 digits"),
    ("input_dim: 0x1G", 1, 12, "0x1G"),
    ("input_dim: 5a", 1, 12, "5a"),
    ("input_dim: [1 2]", 1, 15, "',' or ']'"),
    ("input_dim: [1, 2", 1, 17, "the end of the file"),
    ("layer { convolution_param { num_output: -1 } }", 1, 41, "from 0 to 4294967295, got -1"),
    ("layer { loss_weight: 010 }", 1, 22, "decimal"),
    ("layer { loss_weight: much }", 1, 22, "must be a number, got much"),
    (r"name: '\xff'", 1, 7, "UTF-8"),
    ("name: ['a']", 1, 7, "quoted string"),
    ("layer { type: ReLU }", 1, 15, "must be a quoted string, got ReLU"),
    ("@", 1, 1, "'@'"),
    ('name: "a"\n// a comment', 2, 1, "2:1: " + COMMENT), ('layer { name: "x" // a comment\n }', 1, 19, "layer 'x': " + COMMENT),
    ('/* a comment */ name: "a"', 1, 1, "1:1: " + COMMENT), ('layer { name: // what\n "x" }', 1, 15, "layer[0].name: " + COMMENT),
    ("layer {\n  clip_param { min: 1 } }", 2, 14, "required field 'max'"),
]


@pytest.mark.parametrize("text", ACCEPTED)
def test_agrees_with_protobuf(text):
    assert parse_text(text, caffe_pb2.NetParameter)[0] == text_format.Parse(text, caffe_pb2.NetParameter())


def test_what_protobufs_accept():
    text = r"""
    name: "tab\t \101\x42 \303\251 \u00e9\U0001F600 \\ \' \" \?" input_dim: - 3
    layer { propagate_down: 0x1 loss_weight: - .5 loss_weight: 3F }
    """
    expected = caffe_pb2.NetParameter(name="tab\t AB é é😀 \\ ' \" ?", input_dim=[-3])
    expected.layer.add(propagate_down=[True], loss_weight=[-0.5, 3])
    assert parse_text(text, caffe_pb2.NetParameter)[0] == expected
    text = "state: { phase: 1 level: -1 } layer: { include: { phase: TEST } include: [{}] pooling_param: < pool: AVE > }"
    read = parse_text(text, caffe_pb2.NetParameter)[0]
    assert read == text_format.Parse(text, caffe_pb2.NetParameter()) and (read.state.phase, read.state.level) == (1, -1)


@pytest.mark.parametrize(("text", "line", "column", "words"), REFUSED, ids=[row[0][:30] for row in REFUSED])
def test_refuses_with_line_and_column(text, line, column, words):
    with pytest.raises(ConfigError) as caught:
        parse_text(text, caffe_pb2.NetParameter, "net.prototxt")
    assert (caught.value.line, caught.value.column) == (line, column)
    assert str(caught.value).startswith(f"net.prototxt:{line}:{column}: ")
    assert words in str(caught.value)


def test_limits(tmp_path, monkeypatch):
    """Files of the true limits, 256 MiB and 2,000,000 words, would take a while; test_hostile.py has the second."""
    # No message of Caffe holds itself; protobuf's own description of messages does.
    nested = "nested_type {" * 100
    assert parse_text(nested + "}" * 100, descriptor_pb2.DescriptorProto)[0].nested_type
    with pytest.raises(ConfigError, match="more than 100 deep"):
        parse_text("nested_type {" + nested, descriptor_pb2.DescriptorProto)
    assert (MAX_TEXT, MAX_TOKENS) == (256 << 20, 2_000_000)
    monkeypatch.setattr("minicaffe.proto.text.MAX_TEXT", 12)
    monkeypatch.setattr("minicaffe.proto.text_parser.MAX_TOKENS", 6)
    (tmp_path / "f").write_text("name: 'abcd'")
    assert read_text(tmp_path / "f", caffe_pb2.NetParameter)[0].name == "abcd"
    (tmp_path / "f").write_text("name: 'abcde'")
    with pytest.raises(FileError, match="12 bytes"):
        read_text(tmp_path / "f", caffe_pb2.NetParameter)
    assert list(parse_text("input_dim: 1 input_dim: 2", caffe_pb2.NetParameter)[0].input_dim) == [1, 2]
    with pytest.raises(ConfigError, match="more than 6 words, numbers and marks"):
        parse_text("input_dim: 1 input_dim: 2;", caffe_pb2.NetParameter)


def test_positions():
    text = "name: 'a'\nlayer {\n  name: 'b'\n  top: 't'\n  top: 'u'\n  convolution_param {\n    pad: [1,\n 2]\n  }\n}\n"
    positions = parse_text(text, caffe_pb2.NetParameter)[1]
    lines = {"name": 1, "layer[0]": 2, "layer[0].top[1]": 5, "layer[0].top": 4, "layer[0].convolution_param.pad[1]": 8,
             "layer[0].convolution_param.stride[0]": 6, "layer[0].pooling_param.pad": 2, "layer[1].top": None, "state": None}
    assert {path: positions.line(path) for path in lines} == lines
    assert positions.line("layer[0]") == 2


def test_files(tmp_path):
    path = tmp_path / "net.prototxt"
    path.write_bytes(b"\xef\xbb\xbf# \xb2\xe2 a comment in GBK\r\nname: 'a'\r\n")
    assert read_text(path, caffe_pb2.NetParameter)[0].name == "a"
    path.write_bytes(b"\nname: '\xb2\xe2'")
    with pytest.raises(ConfigError, match=r"net.prototxt:2:7: name: is not valid UTF-8"):
        read_text(path, caffe_pb2.NetParameter)
    path.write_bytes(b"\x0a\x01a\x00")
    with pytest.raises(ConfigError, match="binary data"):
        read_text(path, caffe_pb2.NetParameter)
    with pytest.raises(FileError, match=r"nett.prototxt: no such file; .* did you mean 'net.prototxt'"):
        read_text(tmp_path / "nett.prototxt", caffe_pb2.NetParameter)
    with pytest.raises(FileError, match=r"folder .*absent does not exist"):
        read_text(tmp_path / "absent" / "net.prototxt", caffe_pb2.NetParameter)
    with pytest.raises(FileError, match="is a folder"):
        read_text(tmp_path, caffe_pb2.NetParameter)


# Without NUL, which protobuf 4.25 writes as it is, and which is the mark of a file that is no text.
words = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=8)
layers = st.builds(
    caffe_pb2.LayerParameter,
    name=words,
    bottom=st.lists(words, max_size=3),
    loss_weight=st.lists(st.floats(width=32, allow_nan=False), max_size=3),
    propagate_down=st.lists(st.booleans(), max_size=2),
    phase=st.sampled_from([0, 1]),
    reshape_param=st.builds(
        caffe_pb2.ReshapeParameter,
        shape=st.builds(caffe_pb2.BlobShape, dim=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3)),
        axis=st.integers(-(2**31), 2**31 - 1),
    ),
)


@given(st.lists(layers, max_size=3), words)
def test_written_text_is_read_back(entries, name):
    net = caffe_pb2.NetParameter(name=name, layer=entries)
    assert parse_text(write_text(net), caffe_pb2.NetParameter)[0] == net


PIECES = [*"{}<>:,;[]-'\"\\#\n", "'x'", '"y"', "1", "0x", "1.5", "-2", "inf", "TRAIN", "true"]
PIECES += "layer layers name type dim phase include input_dim param pooling_param mem_param 08 @".split()


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=25).map(" ".join), st.booleans(), st.booleans())
def test_any_text_is_read_or_refused(text, keep, skip):
    try:
        parse_text(text, caffe_pb2.NetParameter, keep_layer_fields=keep, skip_unknown_fields=skip)
    except ConfigError as error:
        assert str(error) and error.line is not None


def test_faster_than_protobuf():
    layer = 'layer {{\n name: "{}"\n type: "Convolution"\n bottom: "data"\n top: "conv"\n param {{ lr_mult: 1 }}\n'
    layer += " convolution_param {{\n num_output: 32\n pad: 2\n weight_filler {{ type: 'xavier' std: 0.03 }}\n }}\n}}\n"
    text = "".join(layer.format(i) for i in range(200))

    def best(parse):
        times = []
        for _ in range(5):
            start = time.perf_counter()
            parse()
            times.append(time.perf_counter() - start)
        return min(times)

    ours = best(lambda: parse_text(text, caffe_pb2.NetParameter))
    assert ours < best(lambda: text_format.Parse(text, caffe_pb2.NetParameter()))


@pytest.mark.parametrize(("text", "message"), [
    ("layer { convolution_param { num_output: 089 } }", "1:41: layer[0].convolution_param.num_output: 089 starts with 0 and so is octal, but has a digit above 7; drop the 0"),
    ('layer { "x" }', "1:9: layer[0]: expected a field or '}' of LayerParameter, got the string \"x\""),
    ("layer { 5 }", "1:9: layer[0]: expected a field or '}' of LayerParameter, got 5"),
    ("layer { name: 'x }", "1:15: layer[0].name: a string is not closed on its line; add the quote"),
    ("layer { 'x }", "1:9: layer[0]: a string is not closed on its line; add the quote"),
    ("layer { [a.b]: 1 }", "1:9: layer[0]: extensions and Any messages are not used by Caffe; remove it"),
    ("\nlayer {\n name: 'a'", "3:11: layer 'a': the file ends inside LayerParameter, opened on line 2; close it with '}'"),
    ("input_dim: 99999999999999999999999", "1:12: input_dim[0]: must be from -2147483648 to 2147483647, got a number of 23 digits"),
    ("input_dim: 2147483648", "1:12: input_dim[0]: must be from -2147483648 to 2147483647, got 2147483648"),
    ("input_dim: -2147483649", "1:12: input_dim[0]: must be from -2147483648 to 2147483647, got -2147483649"),
    ("input_dim: 1.5", "1:12: input_dim[0]: must be a whole number, got 1.5"),
    ('layer { name: "c" type: "Own" convolution_param { num_output: "x" } }',
     "1:63: layer 'c' (Own): convolution_param.num_output: must be a whole number, got the string \"x\""),
    *((f"state {{ phase: {value} }}", f"1:16: state.phase: must be one of TRAIN, TEST, got {shown or value}") for value, shown in (
        ("7", ""), ("-5", ""), ("0x7", ""), ("1.5", ""), ("'TEST'", "the string 'TEST'"), ("[TEST]", "["), ("TESTS", "TESTS; did you mean 'TEST'?"), ("}", ""))),
])
def test_whole_messages(text, message):
    with pytest.raises(ConfigError) as caught:
        parse_text(text, caffe_pb2.NetParameter, "f")
    assert str(caught.value) == f"f:{message}"


def test_fields_that_messages_lack():
    from minicaffe.proto.text import layer_fields, lines_of
    layer = caffe_pb2.LayerParameter(name="a", convolution_param={"num_output": 3, "kernel_size": [1, 2]}, include=[{"phase": 0}, {"stage": ["s"]}])
    plain = ['name: "a"', "include {", "  phase: TRAIN", "}", "include {", '  stage: "s"', "}", "convolution_param {", "  num_output: 3",
             "  kernel_size: 1", "  kernel_size: 2", "}"]
    assert list(lines_of(layer_fields(layer))) == plain
    layer.fork_fields = "convolution_param { own: 5 }\nmore: 'x'"
    assert list(lines_of(layer_fields(layer))) == [*plain[:-1], "  own: 5", "}", 'more: "x"']


@pytest.mark.parametrize("field", ["layer", "layers"])
def test_most_layers(monkeypatch, field):
    """Of other messages that are given several times the number is not limited."""
    monkeypatch.setattr("minicaffe.proto.text_parser.MAX_LAYERS", 3)
    text = f"{field} {{ name: 'a' include {{}} include {{}} include {{}} include: [{{}}, {{}}] }}\n"
    assert len(getattr(parse_text(text * 3, caffe_pb2.NetParameter)[0], field)) == 3
    with pytest.raises(ConfigError) as caught:
        parse_text(text * 4, caffe_pb2.NetParameter, "f")
    assert str(caught.value) == f"f:4:1: {field}[3]: a net has at most 3 layers"


@pytest.mark.parametrize(("escape", "value"), [
    (r"\U0010ffff", "\U0010ffff"), (r"\U00110000", None), (r"\U00110001", None), (r"\Uffffffff", None), (r"\ud7ff", "\ud7ff"), (r"\ud800", None),
    (r"\udfff", None), (r"\ue000", "\ue000"), (r"\U0000d800", None), (r"\0", "\0"), (r"\177", "\x7f"), (r"\400", None), (r"\777", None), (r"\x7f", "\x7f"),
    (r"\X41", "A"), (r"\u00e9", "é"), (r"\z", None), (r"\8", None), (r"\xg", None),
])
def test_escapes(escape, value):
    refused = pytest.raises(ConfigError, match=r"^f:1:7: name: \\[^ ]* is no escape; a backslash itself is written \\\\$")
    with refused if value is None else nullcontext():
        assert parse_text(f'name: "<{escape}>"', caffe_pb2.NetParameter, "f")[0].name == f"<{value}>"


@pytest.mark.parametrize(("text", "layer"), [
    ("layers { name: 'c' tops: 1 }", "'c'"), ("layers { name: 'c' type: NONE tops: 1 }", "'c' (NONE)"), ("layers { name: 'c' type: RELU tops: 1 }", "'c' (RELU)"),
    ("layers { layer { name: 'c' } tops: 1 }", "'c'"), ("layers { layer { name: 'c' type: 'conv' } tops: 1 }", "'c' (conv)"),
    ("layers { layer { name: 'c' type: 'conv' } type: RELU tops: 1 }", "'c' (conv)"), ("layers { name: 'b' layer { name: 'c' } type: RELU tops: 1 }", "'b' (RELU)"),
    ("layer { name: 'c' tops: 1 }", "'c'"), ("layer { name: 'c' type: 'Own' tops: 1 }", "'c' (Own)"), ("layer { type: 'Own' tops: 1 }", None),
    ("layers { type: RELU tops: 1 }", None),
])
def test_layer_of_a_fault(text, layer):
    with pytest.raises(ConfigError) as caught:
        parse_text(text, caffe_pb2.NetParameter, "f")
    head, _, rest = str(caught.value).partition("unknown field in ")
    place = f"f:1:{text.index('tops') + 1}: "
    assert head == place + (f"layer {layer}: tops: " if layer else f"{text.split()[0]}[0].tops: ") and rest


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_line_ends(tmp_path, end):
    """Nets, lists, tables and logs have a line for each of their lines, also behind a byte order mark."""
    path = tmp_path / "net.prototxt"
    lines = ["# a net", "name: 'n' # its name", "layer { name: 'a'", "  type: 'Silence' }  # the end", "layer {", "  nam: 'b' }"]
    path.write_bytes(b"\xef\xbb\xbf" + end.join(lines[:4]).encode())
    assert read_text(path, caffe_pb2.NetParameter)[0].layer[0].name == "a"
    path.write_bytes(end.join(lines).encode())
    with pytest.raises(ConfigError) as raised:
        read_text(path, caffe_pb2.NetParameter)
    assert (raised.value.line, raised.value.column) == (6, 3)

    def write(name, *lines):
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + end.join(lines).encode() + end.encode())
        return str(tmp_path / name)

    assert ImageList(write("list.txt", "a.png 1", "b.png 2")).entries == [("a.png", 1), ("b.png", 2)]
    with pytest.raises(DataError, match="list.txt:2: "):
        ImageList(write("list.txt", "a.png 1", "b.png x"))
    assert list(read_label_map(write("map.prototxt", "item { name: '0' # none", "label: 0 }", "item { name: 'x' label: 1 }"))) == [0, 1]
    assert read_labels(write("labels.txt", "cat", "dog"), None, None, 2) == ["cat", "dog"]
    log = write("run.jsonl", '{"event": "train", "iteration": 5, "loss": 2, "lr": 0.1, "outputs": []}', "")
    assert read_run(log).tables["train"][0]["NumIters"] == 5
    solver = load(write("solver.prototxt", "# a solver", "net: 'n' # of it", "max_iter: 7")).param
    assert (solver.net, solver.max_iter) == ("n", 7)
    assert kind_of(end.join(("# a net", "layer { name: 'a' }")).encode()).name == "prototxt"


@pytest.mark.parametrize("name", ["__class__", "DESCRIPTOR", "name"])
def test_words_of_python(name):
    """The names of the layer's class are as unknown in it as others; nothing is kept outside of the message."""
    text = f"layer {{ name: 'r' type: 'ReLU' {name} {{ x: 1 }} }}"
    with pytest.raises(ConfigError) as caught:
        parse_text(text, caffe_pb2.NetParameter, "net.prototxt")
    assert caught.value.line == 1 and name in str(caught.value)
    with pytest.raises(ConfigError):
        parse_text(f"layer {{ name: 'r' type: 'ReLU' {name}: @ }}", caffe_pb2.NetParameter, "net.prototxt")
    assert not hasattr(caffe_pb2.LayerParameter, "fork_fields")
