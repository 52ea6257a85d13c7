import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { memberValue, memberValues, rememberMembers, scanMembers, spliceMembers } from './json-members.ts';

const bytes = (text: string): Buffer => Buffer.from(text);
const splice = (text: string, edits: Record<string, string | undefined>): string =>
  spliceMembers(bytes(text), edits).toString();
const malformed = expect.objectContaining({ kind: 'invalid_request', code: 'invalid_json' });

/** Any JSON object, with any legal whitespace between its tokens, and the texts of its members. */
const key = fc.oneof(fc.constantFrom('model', 'a', 'b', '', '__proto__'), fc.string({ unit: 'binary', maxLength: 6 }));
const space = fc.constantFrom('', ' ', '\n', '\r\n\t', '  ');
const written = fc
  .array(fc.record({ name: key, value: fc.jsonValue({ maxDepth: 3 }), spaces: fc.tuple(space, space, space, space) }), {
    maxLength: 8,
  })
  .chain((members) => fc.record({ members: fc.constant(members), pretty: fc.boolean(), lead: space, tail: space }))
  .map(({ members, pretty, lead, tail }) => {
    const texts = members.map(({ name, value, spaces: [a, b, c, d] }) => {
      const raw = JSON.stringify(value, null, pretty ? 2 : 0);
      return { name, raw, text: `${a}${JSON.stringify(name)}${b}:${c}${raw}${d}` };
    });
    return { members: texts, json: `${lead}{${texts.map(({ text }) => text).join(',')}${lead}}${tail}` };
  });

/** The same edit on the parsed object. It has a null prototype, so that `__proto__` is an ordinary key. */
function edited(json: string, edits: Record<string, string | undefined>): Map<string, unknown> {
  const object = new Map(Object.entries(JSON.parse(json) as Record<string, unknown>));
  for (const [name, raw] of Object.entries(edits)) {
    if (raw === undefined) object.delete(name);
    else object.set(name, JSON.parse(raw));
  }
  return object;
}

describe('scanning', () => {
  test('every member is found at its position, including duplicates', () => {
    const json = bytes(' { "a" : 1 , "b":"x\\"}{" ,\n"a":[{"a":"]"}], "c":null}\r\n');
    expect(
      scanMembers(json).map((member) => [
        member.name,
        json.toString('utf8', member.nameStart, member.nameEnd),
        json.toString('utf8', member.valueStart, member.valueEnd),
      ]),
    ).toEqual([
      ['a', '"a"', '1'],
      ['b', '"b"', '"x\\"}{"'],
      ['a', '"a"', '[{"a":"]"}]'],
      ['c', '"c"', 'null'],
    ]);
  });

  describe('a large text', () => {
    const large = (): Buffer => bytes(`{"model":"a","filler":"${'x'.repeat(70_000)}","model":"b"}`);

    test('is scanned once', () => {
      const json = large();
      expect(scanMembers(json)).toBe(scanMembers(json));
    });

    test('has the members that another thread has found', () => {
      const [found, json] = [scanMembers(large()), large()];
      rememberMembers(json, structuredClone(found));
      expect(memberValue(json, 'model')?.toString()).toBe('"b"');
      expect(JSON.parse(spliceMembers(json, { model: '"c"', filler: undefined }).toString())).toEqual({ model: 'c' });
    });

    test('is scanned again for other limits', () => {
      const json = large();
      scanMembers(json);
      expect(() => scanMembers(json, { depthMax: 64, membersMax: 2 })).toThrow(malformed);
    });

    test('with many members is scanned each time, so that they take no memory between two steps', () => {
      const json = bytes(`{${Array.from({ length: 10_000 }, (_, index) => `"${index}":1`).join(',')}}`);
      expect(scanMembers(json)).not.toBe(scanMembers(json));
    });
  });

  test('escaped names are compared unescaped', () => {
    expect(scanMembers(bytes('{"mod\\u0065l":1,"\\ud83d\\ude00":2,"tab\\t":3}')).map(({ name }) => name)).toEqual([
      'model',
      '😀',
      'tab\t',
    ]);
  });

  test('offsets are relative to a view into a larger buffer', () => {
    const line = bytes('{"custom_id":"x","body":{"model":"m"}}');
    const body = memberValue(line, 'body');
    expect(body?.toString()).toBe('{"model":"m"}');
    expect(body && memberValue(body, 'model')?.toString()).toBe('"m"');
    expect(body && spliceMembers(body, { model: '"n"' }).toString()).toBe('{"model":"n"}');
  });

  test('several members are found in one scan: the last of duplicates, and no absent one', () => {
    const values = memberValues(bytes('{"a":1,"b":{"a":2},"a":[3]}'), ['a', 'b', 'c']);
    expect(Object.fromEntries(Object.entries(values).map(([name, value]) => [name, value.toString()]))).toEqual({
      a: '[3]',
      b: '{"a":2}',
    });
  });

  test.each([62, 63, 64, 65, 66, 1_000])(
    'a text of about %i bytes ends at the first quote that is not escaped',
    (size) => {
      for (let slashes = 0; slashes < 6; slashes += 1) {
        const text = `${'x'.repeat(size - slashes)}${'\\\\'.repeat(slashes)}"`;
        const json = bytes(JSON.stringify({ a: text, b: text + text }));
        expect(JSON.parse(memberValue(json, 'b')?.toString() ?? '')).toBe(text + text);
        expect(() => scanMembers(json.subarray(0, json.length - 2))).toThrow(malformed);
      }
    },
  );

  test.each([
    '',
    ' ',
    '[]',
    'null',
    '"a"',
    '1',
    '{',
    '{"a"',
    '{"a":',
    '{"a":1',
    '{"a":1,',
    '{"a":1,}',
    '{,"a":1}',
    '{"a" 1}',
    '{a:1}',
    "{'a':1}",
    '{"a":1 "b":2}',
    '{"a":[1}',
    '{"a":{"b":1]}',
    '{"a":"x}',
    '{"a":1}}',
    '{"a":1}{"b":2}',
    '{"a":,"b":1}',
    '{"a":1}x',
    '{"\\x":1}',
    '\ufeff{"a":1}',
  ])('%j is refused', (json) => {
    expect(() => scanMembers(bytes(json))).toThrow(malformed);
  });

  test('nesting is followed without recursion and rejected beyond its limit', () => {
    const nested = (depth: number): Buffer => bytes(`{"a":${'['.repeat(depth)}${']'.repeat(depth)}}`);
    expect(scanMembers(nested(256))).toHaveLength(1);
    expect(() => scanMembers(nested(257))).toThrow(malformed);
    expect(() => scanMembers(bytes(`{"a":${'['.repeat(1_000_000)}`))).toThrow(malformed);
  });

  test('a bracket or quote behind many numbers is found at every distance and alignment', () => {
    for (let distance = 1; distance <= 48; distance += 1) {
      for (let lead = 0; lead < 4; lead += 1) {
        const numbers = '1,'.repeat(24).slice(0, distance - 1) + '1';
        const valueOf = (end: string): string => `[${numbers},["]"],${numbers},{"a":${numbers}${end}]`;
        const textOf = (end: string): string => `{${' '.repeat(lead)}"a":${valueOf(end)},"b":[${numbers}]}`;
        expect(memberValues(bytes(textOf('}')), ['a', 'b'])).toEqual({
          a: bytes(valueOf('}')),
          b: bytes(`[${numbers}]`),
        });
        for (const end of [']', '}}', '"', '']) expect(() => scanMembers(bytes(textOf(end)))).toThrow(malformed);
      }
    }
  });

  test('the number of members is bounded', () => {
    const json = bytes('{"a":1,"b":2,"c":3}');
    expect(scanMembers(json, { depthMax: 8, membersMax: 3 })).toHaveLength(3);
    expect(() => scanMembers(json, { depthMax: 8, membersMax: 2 })).toThrow(malformed);
  });

  test('any object is scanned into its own members', () => {
    fc.assert(
      fc.property(written, ({ json, members }) => {
        const source = bytes(json);
        const found = scanMembers(source).map((member) => ({
          name: member.name,
          raw: source.toString('utf8', member.valueStart, member.valueEnd),
        }));
        expect(found).toEqual(members.map(({ name, raw }) => ({ name, raw })));
      }),
    );
  });
});

describe('splicing', () => {
  test('a value is replaced in place and nothing else changes', () => {
    expect(splice('{ "seed": 9223372036854775807,\n "model" : "a" , "x":1.0,"x":1e2 }', { model: '"b"' })).toBe(
      '{ "seed": 9223372036854775807,\n "model" : "b" , "x":1.0,"x":1e2 }',
    );
  });

  test('every duplicate of a member is replaced, so that no reader sees the old value', () => {
    expect(splice('{"model":"a","n":1,"mod\\u0065l":"b"}', { model: '"c"' })).toBe(
      '{"model":"c","n":1,"mod\\u0065l":"c"}',
    );
  });

  test('an absent member is appended', () => {
    expect(splice('{"a":1 }', { b: '{}', c: '2' })).toBe('{"a":1,"b":{},"c":2 }');
    expect(splice(' { } ', { b: '{}' })).toBe(' {"b":{} } ');
  });

  test.each([
    ['{"a":1,"b":2,"c":3}', 'a', '{"b":2,"c":3}'],
    ['{"a":1,"b":2,"c":3}', 'b', '{"a":1,"c":3}'],
    ['{"a":1,"b":2,"c":3}', 'c', '{"a":1,"b":2}'],
    ['{ "a":1 , "a":2 , "b":3 }', 'a', '{ "b":3 }'],
    ['{ "b":3 , "a":1 , "a":2 }', 'a', '{ "b":3 }'],
    ['{"a":1}', 'a', '{}'],
    ['{"a":1}', 'z', '{"a":1}'],
  ])('from %j, %s is removed with one separator', (json, name, result) => {
    expect(splice(json, { [name]: undefined })).toBe(result);
  });

  test('any edit has the same effect as editing the parsed object', () => {
    const raw = fc.jsonValue({ maxDepth: 2 }).map((value) => JSON.stringify(value));
    const edits = fc.dictionary(
      key.filter((name) => name !== '__proto__'),
      fc.option(raw, { nil: undefined }),
      {
        maxKeys: 5,
      },
    );
    fc.assert(
      fc.property(written, edits, ({ json }, changes) => {
        const result = spliceMembers(bytes(json), changes);
        expect(new Map(Object.entries(JSON.parse(result.toString()) as Record<string, unknown>))).toEqual(
          edited(json, changes),
        );
      }),
      { numRuns: 500 },
    );
  });

  test('members that an edit does not name keep their bytes', () => {
    fc.assert(
      fc.property(written, fc.constantFrom('1', '{"x":[]}', undefined), ({ json }, value) => {
        const texts = (buffer: Buffer): string[] =>
          scanMembers(buffer)
            .filter(({ name }) => name !== 'model')
            .map((member) => buffer.toString('utf8', member.nameStart, member.valueEnd));
        expect(texts(spliceMembers(bytes(json), { model: value }))).toEqual(texts(bytes(json)));
      }),
      { numRuns: 300 },
    );
  });

  test('a replacement changes no byte outside the value', () => {
    const outside = (buffer: Buffer): string =>
      scanMembers(buffer)
        .filter(({ name }) => name === 'model')
        .reduceRight((text, { valueStart, valueEnd }) => {
          return text.slice(0, valueStart * 2) + text.slice(valueEnd * 2);
        }, buffer.toString('hex'));
    fc.assert(
      fc.property(written, ({ json, members }) => {
        fc.pre(members.some(({ name }) => name === 'model'));
        expect(outside(spliceMembers(bytes(json), { model: '"other"' }))).toBe(outside(bytes(json)));
      }),
      { numRuns: 300 },
    );
  });
});
