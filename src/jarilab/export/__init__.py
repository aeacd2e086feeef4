"""Models for other programs: the graphs of saved pages, ONNX and torch.export, CTranslate2, Hugging Face."""
