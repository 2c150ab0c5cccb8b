"""tools/five_users.py: the five users pass, and what a command does wrong is found."""

import sys

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


@pytest.mark.parametrize("command, arguments, wrong", [
    ("echo it; exit 3", {}, "it\nwrong: exit status 3, expected 0"),
    ("true", {"status": 1}, "exit status 0, expected 1"),
    ("echo a; echo b", {"max_lines": 1}, "2 lines, at most 1"),
    ("printf '%081d' 1", {"terminal": True}, "81 columns, the terminal has 80"),
], ids=["status", "no error", "lines", "width"])
def test_what_a_command_does_wrong(user, command, arguments, wrong):
    with pytest.raises(FailureError, match=wrong) as found:
        user.run(command, **arguments)
    assert str(found.value).startswith(f"{command}\n")


def test_what_is_not_printed(user):
    assert user.run("echo one; echo two >&2", "^one$", "^two$") == "one\ntwo\n"
    with pytest.raises(FailureError, match="wrong: it does not print 'three'"):
        user.run("echo one", "one", "three")
    assert user.commands == 2 and user.seconds > 0


def test_spaces_at_the_end_of_a_line(user):
    (user.folder / "minicaffe").write_text("#!/bin/sh\necho 'I0101 a log line '\necho 'padded '\n")
    (user.folder / "minicaffe").chmod(0o755)
    user.environment["PATH"] = f"{user.folder}:{user.environment['PATH']}"
    with pytest.raises(FailureError, match="wrong: spaces at the end of a line: padded $"):
        user.run("minicaffe summary")


def test_a_command_runs_in_a_terminal_of_its_own(user):
    assert user.run("test -t 1 && test -t 2 && stty size", terminal=True) == "40 80\n"
    assert user.run("test -t 0 || test -t 1", status=1) == ""


@pytest.mark.parametrize("written, shown", [
    ("a\r\nb\r\n", "a\nb\n"), ("\x1b[1mbold\x1b[0m", "bold\n"), ("50%\r100%", "100%\n"), ("longer\rab", "abnger\n"),
    ("bar 0/1\r\n\x1b[1A\x1b[2Kbar 1/1\r\n\x1b[1A\x1b[2Kdone", "done\n"), ("\x1b]0;title\x07text", "text\n"),
])
def test_what_a_terminal_shows(written, shown):
    assert five_users.screen(written) == shown


def test_commands_of_pages():
    command = five_users.from_page("docs/trace.md", "minicaffe trace", {"lenet.html": "a.html"}, "--step")
    assert command == "minicaffe trace models/lenet/net.prototxt --iterations 2 --html a.html --json lenet.json --force --step"
    assert five_users.from_page("docs/your_own_pictures.md", "cat > net.prototxt").endswith("\nEND\n")
    with pytest.raises(FailureError, match="docs/trace.md: there is no command that begins with 'minicaffe fly'"):
        five_users.from_page("docs/trace.md", "minicaffe fly")
    with pytest.raises(FailureError, match="does not contain 'resnet'"):
        five_users.from_page("docs/trace.md", "minicaffe trace", {"resnet": "lenet"})


def test_a_file_of_a_page(user):
    user.save("docs/adding_a_solver.md", "train_lion.py")
    assert "import lion" in (user.folder / "train_lion.py").read_text()
    with pytest.raises(FailureError, match="no block with the first line '# tiger.py'"):
        user.save("docs/adding_a_solver.md", "tiger.py")


def test_a_failure_is_printed_and_is_the_exit_status(monkeypatch, capsys):
    def wrong(user):
        """runs what fails"""
        user.run("echo 'no such file'; exit 2")
    monkeypatch.setattr(five_users, "USERS", {"wrong": wrong})
    monkeypatch.setattr(sys, "argv", ["five_users.py"])
    assert five_users.main() == 1
    assert "wrong: FAILED\necho 'no such file'; exit 2\nno such file\nwrong: exit status 2, expected 0\n" in capsys.readouterr().out


def test_the_table(monkeypatch, capsys):
    def right(user):
        """runs what does not fail"""
        user.run("true")
    monkeypatch.setattr(five_users, "USERS", {"right": right})
    monkeypatch.setattr(sys, "argv", ["five_users.py", "--user", "right"])
    assert five_users.main() == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[:2] == ["right", "1"]
