"""What would happen: training steps on tensors without memory, and what a CUDA device does differently."""
