const quote = 0x22;
const backslash = 0x5c;

/**
 * Whether JSON text nests deeper than `depthMax` arrays and objects. A scan, not a parse: it does not recurse, so text
 * that is nothing but brackets costs no stack (security-and-faults.md B2-13). Of text that is not JSON it may say
 * anything; the parser refuses that.
 */
export function nestsDeeper(bytes: Uint8Array, start: number, end: number, depthMax: number): boolean {
  let depth = 0;
  for (let at = start; at < end; at += 1) {
    const byte = bytes[at];
    if (byte === quote) {
      at += 1;
      while (at < end && bytes[at] !== quote) at += bytes[at] === backslash ? 2 : 1;
    } else if (byte === 0x7b || byte === 0x5b) {
      depth += 1;
      if (depth > depthMax) return true;
    } else if (byte === 0x7d || byte === 0x5d) depth -= 1;
  }
  return false;
}
