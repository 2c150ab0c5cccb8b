"""``minicaffe completion``: the script by which a shell completes commands, options, choices and files of minicaffe."""

import click
from click.shell_completion import get_completion_class

from minicaffe.cli import options

VARIABLE = "_MINICAFFE_COMPLETE"    # by its value the shell's script calls minicaffe for completions


@click.command(cls=options.CaffeCommand)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@options.messages
def completion(shell):
    """Print the script that completes commands, options, choices and files of minicaffe in SHELL.

    \b
    bash  eval "$(minicaffe completion bash)"       in ~/.bashrc
    zsh   eval "$(minicaffe completion zsh)"        in ~/.zshrc, below compinit
    fish  minicaffe completion fish > ~/.config/fish/completions/minicaffe.fish
    """
    commands = click.get_current_context().find_root().command
    click.echo(get_completion_class(shell)(commands, {}, "minicaffe", VARIABLE).source())
