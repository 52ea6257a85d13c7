import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import fc from 'fast-check';
import { afterAll, describe, expect, test } from 'vitest';
import { snippetsOf, toPython } from '#apps/console/src/pages/call-snippets.ts';

const folder = mkdtempSync(path.join(tmpdir(), 'sluice-snippets-'));
afterAll(() => rmSync(folder, { recursive: true, force: true }));
const hasPython = spawnSync('python3', ['--version']).status === 0;

/** Stands for the package of OpenAI: prints what the snippet gives it. */
const stub = `import json
class OpenAI:
    def __init__(self, **client):
        def create(**body):
            print(json.dumps({"client": client, "body": body}))
            raise SystemExit
        self.chat = type("", (), {})()
        self.chat.completions = type("", (), {})()
        self.chat.completions.create = create
`;

function runPython(program: string): unknown {
  writeFileSync(path.join(folder, 'openai.py'), stub);
  const env = { ...process.env, PYTHONPATH: folder, SLUICE_API_KEY: 'sk-key', PYTHONDONTWRITEBYTECODE: '1' };
  const { stdout, stderr, status } = spawnSync('python3', ['-c', program], { env, encoding: 'utf8' });
  expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
  return JSON.parse(stdout);
}

const base = 'https://sluice.example.com/v1';
const tool = {
  type: 'function',
  function: { name: 'now', strict: true, parameters: { type: 'object', default: null } },
};
const bodies: Record<string, Record<string, unknown>> = {
  'a message': { model: '@simulator/sim-small', messages: [{ role: 'user', content: 'Why?' }], max_tokens: 256 },
  'constants and tools': { model: 'm', parallel_tool_calls: true, store: false, seed: null, tools: [tool], stop: [] },
  'texts with quotes and lines': {
    model: 'm',
    messages: [{ role: 'user', content: `"it's" \\n\n\t'''""" $HOME {x}` }],
  },
  'other scripts and numbers': {
    model: 'm',
    user: 'مرحبا 😀 \u2028',
    temperature: 1e-7,
    logit_bias: { '50256': -100 },
  },
};

describe.each(Object.entries(bodies))('%s', (_name, body) => {
  test.skipIf(!hasPython)('the Python snippet makes the call', () => {
    for (const config of [null, `it's "mine"`]) {
      const headers = config === null ? {} : { default_headers: { 'x-gateway-config': config } };
      expect(runPython(snippetsOf({ body, base, config }).python)).toEqual({
        client: { base_url: base, api_key: 'sk-key', ...headers },
        body,
      });
    }
  });

  test('the curl snippet sends the body', () => {
    const { curl } = snippetsOf({ body, base, config: null });
    const { stdout } = spawnSync('bash', ['-c', `curl() { printf %s "\${@: -1}"; }\n${curl}`], { encoding: 'utf8' });
    expect(JSON.parse(stdout)).toEqual(body);
  });
});

/** Reads a literal of Python strictly: only what JSON has too, and the three constants. */
function readLiteral(text: string): unknown {
  const json = text
    .split(/("(?:[^"\\]|\\.)*")/s)
    .map((part, index) => {
      if (index % 2 === 1) return part;
      expect(part).not.toMatch(/true|false|null|undefined|NaN|Infinity/);
      return part
        .replaceAll('True', 'true')
        .replaceAll('False', 'false')
        .replaceAll('None', 'null')
        .replaceAll(/,(?=\s*[\]}])/g, '');
    })
    .join('');
  return JSON.parse(json);
}

test('every JSON value becomes a literal of Python', () => {
  const names = fc.string().filter((name) => name !== '__proto__');
  const { value } = fc.letrec((tie) => ({
    value: fc.oneof(
      { maxDepth: 4 },
      fc.constantFrom(true, false, null),
      fc.string(),
      fc.double({ noNaN: true, noDefaultInfinity: true }).filter((number) => !Object.is(number, -0)),
      fc.array(tie('value'), { maxLength: 3 }),
      fc.dictionary(
        names.filter((name) => !/[,\]}]/.test(name)),
        tie('value'),
        { maxKeys: 3 },
      ),
    ),
  }));
  fc.assert(
    fc.property(value, (json) => {
      expect(readLiteral(toPython(json))).toEqual(JSON.parse(JSON.stringify(json)));
    }),
  );
});
