"""`python -m edged`, and the command `edged`: a Ctrl-C while it is read is one, too."""

import sys


def main() -> int:
    """Run the command line; the exit code."""
    try:
        from edged.cli.main import main as command_line
    except KeyboardInterrupt:
        sys.stderr.write("edged: interrupted\n")
        return 130
    return command_line()


if __name__ == "__main__":
    sys.exit(main())
