"""What a terminal shows, a file for each thing that is shown."""
