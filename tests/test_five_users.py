"""tools/five_users.py: the five users pass, and what a command does wrong is found."""

import five_users
import pytest
from five_users import FailureError


@pytest.fixture
def user(tmp_path):
    return five_users.User(tmp_path, report=lambda line: None)


@pytest.mark.slow(15)
@pytest.mark.parametrize("name", five_users.USERS)
def test_a_user(name):
    for package in ("cv2", "onnx", "onnxruntime"):
        pytest.importorskip(package)
    lines = []
    assert five_users.play(name, lines.append).commands == len(lines) - 1 > 5


@pytest.mark.parametrize("command, wanted, options, wrong", [
    ("echo it; exit 3", [], {}, "it\nwrong: exit status 3, expected 0"), ("true", [], {"status": 1}, "exit status 0, expected 1"),
    ("echo a; echo b", [], {"max_lines": 1}, "2 lines, at most 1"), ("printf '%081d' 1", [], {"terminal": True}, "81 columns, the terminal has 80"),
    ("echo one", ["one", "three"], {}, "wrong: it does not print 'three'"), ("./minicaffe summary", [], {}, ""),
    ("minicaffe summary", [], {}, "wrong: spaces at the end of a line: padded $")])
def test_wrong_commands(user, command, wanted, options, wrong):
    (user.folder / "minicaffe").write_text("#!/bin/sh\necho 'I0101 a log line '\necho 'padded '\n")
    (user.folder / "minicaffe").chmod(0o755)
    user.environment["PATH"] = f"{user.folder}:{user.environment['PATH']}"
    if wrong:
        with pytest.raises(FailureError, match=wrong) as found:
            user.run(command, *wanted, **options)
        assert str(found.value).startswith(f"{command}\n")
    else:
        assert "padded" in user.run(command, *wanted, **options)


def test_terminal_and_pages(user):
    assert user.run("test -t 1 && test -t 2 && stty size", terminal=True) == "40 80\n"
    assert user.run("test -t 0 || test -t 1", status=1) == "" and user.commands == 2
    for written, shown in (("a\r\nb\r\n", "a\nb\n"), ("\x1b[1mbold\x1b[0m", "bold\n"), ("50%\r100%", "100%\n"), ("longer\rab", "abnger\n"),
                           ("bar 0/1\r\n\x1b[1A\x1b[2Kbar 1/1\r\n\x1b[1A\x1b[2Kdone", "done\n"), ("\x1b]0;title\x07text", "text\n")):
        assert five_users.screen(written) == shown
    command = five_users.from_page("docs/trace.md", "minicaffe trace", {"lenet.html": "a.html"}, "--step")
    assert command == "minicaffe trace models/lenet/net.prototxt --iterations 2 --html a.html --json lenet.json --force --step"
    user.save("docs/adding_a_solver.md", "train_lion.py")
    assert "import lion" in (user.folder / "train_lion.py").read_text()
    for call, wrong in ((lambda: five_users.from_page("docs/trace.md", "minicaffe fly"), "docs/trace.md: there is no command that begins with 'minicaffe fly'"),
                        (lambda: five_users.from_page("docs/trace.md", "minicaffe trace", {"resnet": "lenet"}), "does not contain 'resnet'"),
                        (lambda: user.save("docs/adding_a_solver.md", "tiger.py"), "no block with the first line '# tiger.py'")):
        with pytest.raises(FailureError, match=wrong):
            call()


@pytest.mark.parametrize("command, status, last", [("true", 0, "user 1"), ("echo 'no such file'; exit 2", 1, "wrong: exit status 2, expected 0")])
def test_exit_status(monkeypatch, capsys, command, status, last):
    def play(user):
        """runs a command"""
        user.run(command)
    monkeypatch.setattr(five_users, "USERS", {"user": play})
    monkeypatch.setattr("sys.argv", ["five_users.py", "--user", "user"])
    assert five_users.main() == status
    assert last in " ".join(capsys.readouterr().out.split())
