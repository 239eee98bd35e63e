"""Files and pictures: meshes, tables, fields, plots."""
