"""Files that a device's software wrote: logs of the runtime, captured graphs, FX listings, profiles, dumps of tensors.

Pure text and tensors without pickles: nothing is imported or run. `npucompose_devtools.artefacts.read` asks these
readers after its own.
"""
