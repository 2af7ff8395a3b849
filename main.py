"""`python main.py` is the command `torch-timeline`, from a checkout."""

from tracer.commands.app import app

__tracebackhide__ = True  # a line of this file explains nothing about the model

if __name__ == "__main__":
    app()
