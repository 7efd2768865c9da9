"""The plain files of a device kit, copied as they stand: they import torch, torch_npu and the standard library only."""
