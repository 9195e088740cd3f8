// The bytes of one matrix's scales in the padded 128x4 layout, and the offset of one scale over all matrices.
FOURFOLD_HOST_DEVICE int64_t scale_bytes(int64_t rows, int64_t blocks) {
  return (rows + 127) / 128 * ((blocks + 3) / 4) * 512;
}

FOURFOLD_HOST_DEVICE int64_t scale_at(int64_t rows, int64_t blocks, int64_t batch, int64_t row, int64_t block) {
  return batch * scale_bytes(rows, blocks) + (row / 128 * ((blocks + 3) / 4) + block / 4) * 512 + row % 32 * 16 +
         row % 128 / 32 * 4 + block % 4;
}
