"""The option table: how an option is declared, how a plain tree becomes checked values, what names and modes there are.

No option of anybody's may live here, no vendor, and nothing that knows what an experiment is.
"""
