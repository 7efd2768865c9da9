"""The native replayer: C++ sources, how they are built, the operators it holds set up, the executor that uses them."""
