"""`python -m tracer` is the command `torch-timeline`."""

from tracer.commands.app import app

if __name__ == "__main__":
    app()
