"""Models of the Hugging Face library: any class made from a configuration, and one encoder with its real weights.

What imports that library may live here; no file is downloaded, and nothing of it is imported before a model is built.
"""
