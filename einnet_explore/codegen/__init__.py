"""Generated kernels as values and text: loop structure, tiles, layouts, printers. Nothing is compiled or run here."""
