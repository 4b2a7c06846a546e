"""The live box: one guest behind one channel, with commands, files and connections."""
