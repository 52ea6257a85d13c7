import { describe, expect, test } from 'vitest';
import { canonicalJson } from './canonical-json.ts';

describe('canonical JSON', () => {
  test('matches the examples of RFC 8785', () => {
    // Sections 3.2.2 and 3.2.3.
    const example = {
      numbers: [Number('333333333.33333329'), 1e30, 4.5, 2e-3, 0.000000000000000000000000001],
      string: '\u20ac$\u000F\u000aA\'\u0042\u0022\u005c\\"/',
      literals: [null, true, false],
    };
    expect(canonicalJson(example)).toBe(
      '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}',
    );
    const names = { '\u20ac': 1, '\r': 2, '\ufb33': 3, '1': 4, '\u{1f600}': 5, '\u0080': 6, '\u00f6': 7 };
    expect(canonicalJson(names)).toBe('{"\\r":2,"1":4,"\u0080":6,"ö":7,"€":1,"😀":5,"\ufb33":3}');
  });

  test('writes the numbers of appendix B, and refuses numbers that JSON does not have', () => {
    const bits = (hex: string): number => Buffer.from(hex, 'hex').readDoubleBE();
    expect(
      ['8000000000000000', '0000000000000001', '7fefffffffffffff', '444b1ae4d6e2ef50', '3eb0c6f7a0b5ed8d'].map((hex) =>
        canonicalJson(bits(hex)),
      ),
    ).toEqual(['0', '5e-324', '1.7976931348623157e+308', '1e+21', '0.000001']);
    for (const number of [Number.NaN, Number.POSITIVE_INFINITY]) expect(() => canonicalJson(number)).toThrow(TypeError);
  });

  test('sorts names that are whole numbers like any other text', () => {
    expect(canonicalJson({ 9: 1, 10: 2 })).toBe('{"10":2,"9":1}');
  });

  test('leaves out what JSON.stringify leaves out, and writes times in the same way', () => {
    const value = { a: undefined, b: [undefined, null], c: new Date(0), ['__proto__']: 1 };
    expect(JSON.parse(canonicalJson(value))).toEqual(JSON.parse(JSON.stringify(value)));
    expect(canonicalJson(value)).toContain('"c":"1970-01-01T00:00:00.000Z"');
  });

  test.each([['\ud800'], [{ '\udc00': 1 }], [1n], [() => {}]])('refuses what has no exact form in JSON', (value) => {
    expect(() => canonicalJson(value)).toThrow(TypeError);
  });
});
