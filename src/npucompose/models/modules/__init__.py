"""The networks themselves. Each file imports torch at its top, so a model's file imports it inside `build`."""
