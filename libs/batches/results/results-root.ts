import { hash } from 'node:crypto';

/**
 * The RFC 6962 Merkle root (hex) of settled lines in line order, over leaves uint64be(line) ‖ sha256(line bytes), so
 * that anyone can compute it again from the output and error files. `lines` must be sorted. An empty list gives the
 * hash of the empty string (RFC 6962 2.1).
 */
export function resultsRoot(lines: readonly { line: number; sha256: Buffer }[]): string {
  if (lines.length === 0) return hash('sha256', '');
  const leaf = Buffer.alloc(41); // 0x00 ‖ uint64be ‖ 32 bytes
  let level: Buffer[] = lines.map(({ line, sha256 }) => {
    leaf.writeBigUInt64BE(BigInt(line), 1);
    sha256.copy(leaf, 9);
    return hash('sha256', leaf, 'buffer');
  });
  const node = Buffer.alloc(65, 1); // 0x01 ‖ 32 bytes ‖ 32 bytes
  // Pairing from the left and moving an odd last node up is the same as RFC 6962's split at the largest power of two.
  while (level.length > 1) {
    const next: Buffer[] = [];
    for (let index = 0; index < level.length; index += 2) {
      const [left, right] = [level[index] as Buffer, level[index + 1]];
      if (right) {
        left.copy(node, 1);
        right.copy(node, 33);
      }
      next.push(right ? hash('sha256', node, 'buffer') : left);
    }
    level = next;
  }
  return (level[0] as Buffer).toString('hex');
}
