"""Inference engines: how vLLM is started on the null GPU, the memory that its workers report, and the answer."""
