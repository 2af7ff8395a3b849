"""Of operator invocations: how long they took, what they saved for backward, and the tables of the two reports."""
