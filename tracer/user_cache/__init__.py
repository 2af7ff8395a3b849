"""What is compiled for this user: where it lies, that no other user can change it, and when it is deleted."""
