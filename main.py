"""`python main.py` is the command `torch-timeline`, from a checkout."""

from tracer.commands.app import app

__all__ = ["app"]

__tracebackhide__ = True  # the model's own lines are what explains an error

if __name__ == "__main__":
    app()
