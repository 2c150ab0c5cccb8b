"""proto/caffe.proto against tables of the messages of BVLC Caffe (proto_*.tsv) and the SSD fork (proto_*_ssd.tsv)."""

import csv
from pathlib import Path

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool

from minicaffe.proto import caffe_pb2

HERE = Path(__file__).parent
FieldProto = descriptor_pb2.FieldDescriptorProto
# SSD's numbers 41 and 42 of SolverParameter are BVLC's layer_wise_reduce and weights.
MOVED = {("SolverParameter", "eval_type"): 241, ("SolverParameter", "ap_version"): 242}
# Messages and fields of minicaffe's own.
OUR_MESSAGES = {"ArrayProto", "SlotProto", "WorkspaceProto"}
OURS = {("SolverState", "resume_state"): "string", ("LayerParameter", "fork_fields"): "string", ("V1LayerParameter", "fork_fields"): "string",
        ("DataParameter", "label_size"): "uint32", ("ImageDataParameter", "label_size"): "uint32"}


def table(name):
    with open(HERE / name) as file:
        return list(csv.DictReader(file, delimiter="\t"))


def described():
    """Return the compiled FileDescriptorProto; unlike descriptors it is the same in all versions of protobuf."""
    file = descriptor_pb2.FileDescriptorProto()
    caffe_pb2.DESCRIPTOR.CopyToProto(file)
    return file


def type_name(field):
    if field.type_name:
        return field.type_name.removeprefix(".minicaffe.")
    return FieldProto.Type.Name(field.type).removeprefix("TYPE_").lower()


def default_of(kind, text):
    if not text:
        return None
    # Through float32: some versions of protobuf give a float's default with nine digits.
    return {"bool": str.lower, "float": np.float32}.get(kind, str)(text)


def test_fields_and_enums_of_the_tables():
    expected = {}
    for row in table("proto_fields.tsv") + table("proto_fields_ssd.tsv"):
        key = row["message"], row["field"]
        expected[key] = (MOVED.get(key, int(row["number"])), row["label"], row["type"], default_of(row["type"], row["default"]), "packed" in row["options"])
    found = {}
    for message in described().message_type:
        if message.name in OUR_MESSAGES:
            continue
        for field in message.field:
            label = FieldProto.Label.Name(field.label).removeprefix("LABEL_").lower()
            kind = type_name(field)
            default = default_of(kind, field.default_value)
            found[message.name, field.name] = (field.number, label, kind, default, field.options.packed)
    for field, kind in OURS.items():
        assert found.pop(field) == (1000, "optional", kind, None, False)
    assert found == expected
    expected = {(r["enum"], r["value"]): int(r["number"]) for r in table("proto_enums.tsv") + table("proto_enums_ssd.tsv")}
    file = described()
    enums = [("", enum) for enum in file.enum_type]
    enums += [(message.name + ".", enum) for message in file.message_type for enum in message.enum_type]
    assert {(place + enum.name, v.name): v.number for place, enum in enums for v in enum.value} == expected


def test_module_beside_another_caffe():
    assert caffe_pb2.NetParameter().DESCRIPTOR.full_name == "minicaffe.NetParameter"
    assert (caffe_pb2.TRAIN, caffe_pb2.TEST, caffe_pb2.Phase.Name(1)) == (0, 1, "TEST")
    assert caffe_pb2.PoolingParameter.AVE == caffe_pb2.PoolingParameter.PoolMethod.Value("AVE") == 1
    assert caffe_pb2.SolverParameter().delta == pytest.approx(1e-8)
    assert caffe_pb2.LayerParameter.BLOBS_FIELD_NUMBER == 7
    other = descriptor_pb2.FileDescriptorProto(name="caffe.proto", package="caffe", syntax="proto2")
    other.message_type.add(name="NetParameter")
    descriptor_pool.Default().AddSerializedFile(other.SerializeToString())
    both = [descriptor_pool.Default().FindMessageTypeByName(f"{name}.NetParameter") for name in ("caffe", "minicaffe")]
    assert both[0] is not both[1]
