"""Writing quantised checkpoints: from a model's original weights to a folder in compressed-tensors' format.

- `schemes` has the schemes by name, and what config.json says of each.
- `targets` finds the linear maps of a checkpoint that are quantised, and those that stay as they are.
- `rounding` chooses scales and rounds to the nearest; `gptq` rounds so that a layer's outputs change least.
- `calibration` reads texts, and `layerwise` runs them through the model, in `passes`, where `observing` sees inputs.
- `rounded` has a matrix that was quantised, and what that changed.
- `packing` lays codes out as files have them; `shards` writes files tensor by tensor, and `folder` a whole folder.
- `quantizer` does it all. `ready` reads the result back.
"""
