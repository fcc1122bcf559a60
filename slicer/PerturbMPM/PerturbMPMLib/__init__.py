"""What the module does without 3D Slicer: commands, files, places, label maps."""
