"""Files of weights: PyTorch, TensorFlow, safetensors."""
