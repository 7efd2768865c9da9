"""Calls of a recording without torch.compile around it: detached handles.

How a recording is made is not known here.
"""
