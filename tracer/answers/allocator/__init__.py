"""What a run, a prediction or a watched training found: frozen data that exporters write."""
