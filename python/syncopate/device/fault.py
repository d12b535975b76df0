"""The fault of a wait, apart: both language.py and, for the interpreter, host/language.py name it."""


class SyncopateFault(RuntimeError):
    """A signal did not come before the deadline, or another wait of the same call has already failed."""

    __module__ = "syncopate.language"  # from where it is imported
