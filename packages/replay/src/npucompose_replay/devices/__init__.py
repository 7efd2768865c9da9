"""What records for each target: the answers to `npucompose.targets.recorded.DeviceRecorder`.

Importing any of it loads no torch; how a graph is recorded is the business of the folders below.
"""
