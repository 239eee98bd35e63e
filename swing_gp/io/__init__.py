"""Files and pictures: meshes, tables, plots."""
