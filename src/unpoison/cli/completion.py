"""How does the shell learn to complete unpoison's commands and options?"""

import click
from click.shell_completion import get_completion_class


@click.command(
    "completion",
    epilog="\b\nExamples:\n"
    "  echo 'eval \"$(unpoison completion bash)\"' >> ~/.bashrc\n"
    "  echo 'eval \"$(unpoison completion zsh)\"' >> ~/.zshrc\n"
    "  unpoison completion fish > ~/.config/fish/completions/unpoison.fish",
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion script for a shell.

    The script goes to standard output. To install it add the line of your shell below, and open a new terminal.
    """
    script = get_completion_class(shell)
    if script is None:  # click knows all three
        raise click.ClickException(f"This version of click cannot complete in {shell}. Upgrade it: pip install -U click")
    click.echo(script(ctx.find_root().command, {}, "unpoison", "_UNPOISON_COMPLETE").source())
