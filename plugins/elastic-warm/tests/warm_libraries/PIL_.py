"""Images in memory."""

import io

import probe

import PIL.Image
import PIL.ImageFilter

probe.imported("PIL")
picture = PIL.Image.radial_gradient("L").filter(PIL.ImageFilter.GaussianBlur(3)).resize((32, 32))
stored = io.BytesIO()
picture.save(stored, "PNG")
probe.result("sum", sum(PIL.Image.open(stored).tobytes()))
probe.end()
