/** A chat call as it was written in the playground. */
export type SnippetCall = {
  body: Readonly<Record<string, unknown>>;
  /** Ends in /v1. */
  base: string;
  /** The slug of a config; null for no config. */
  config: string | null;
};

/** The same call as code, ready to be copied. The key comes from the variable SLUICE_API_KEY. */
export const snippetsOf = (call: SnippetCall): { curl: string; typescript: string; python: string } => ({
  curl: curlOf(call),
  typescript: typescriptOf(call),
  python: pythonOf(call),
});

/** A text in single quotes for a shell, which does not interpret any character inside them. */
const quoted = (text: string): string => `'${text.replaceAll("'", String.raw`'\''`)}'`;

const curlOf = ({ body, base, config }: SnippetCall): string =>
  [
    `curl ${base}/chat/completions -H "authorization: Bearer $SLUICE_API_KEY" -H 'content-type: application/json'`,
    ...(config === null ? [] : [`  -H ${quoted(`x-gateway-config: ${config}`)}`]),
    `  -d ${quoted(JSON.stringify(body))}`,
  ].join(' \\\n');

function typescriptOf({ body, base, config }: SnippetCall): string {
  const headers = config === null ? '' : `, defaultHeaders: ${JSON.stringify({ 'x-gateway-config': config })}`;
  return `import OpenAI from 'openai';

const client = new OpenAI({ baseURL: ${JSON.stringify(base)}, apiKey: process.env.SLUICE_API_KEY${headers} });
const answer = await client.chat.completions.create(${JSON.stringify(body, null, 2)});
console.log(answer.choices[0].message.content);`;
}

function pythonOf({ body, base, config }: SnippetCall): string {
  const headers = config === null ? '' : `, default_headers=${toPython({ 'x-gateway-config': config })}`;
  return `import os
from openai import OpenAI

client = OpenAI(base_url=${toPython(base)}, api_key=os.environ["SLUICE_API_KEY"]${headers})
answer = client.chat.completions.create(**${toPython(body)})
print(answer.choices[0].message.content)`;
}

/**
 * A JSON value as a Python literal. Strings and numbers are written as in JSON, but constants are not.
 * @testOnly
 */
export function toPython(value: unknown, indent = ''): string {
  if (value === null || value === undefined) return 'None';
  if (typeof value === 'boolean') return value ? 'True' : 'False';
  if (typeof value !== 'object') return JSON.stringify(value);
  const inner = `${indent}    `;
  const isList = Array.isArray(value);
  const entries = isList
    ? value.map((entry) => toPython(entry, inner))
    : Object.entries(value)
        .filter(([, member]) => member !== undefined)
        .map(([name, member]) => `${JSON.stringify(name)}: ${toPython(member, inner)}`);
  const [open, close] = isList ? ['[', ']'] : ['{', '}'];
  if (entries.length === 0) return `${open}${close}`;
  return `${open}\n${entries.map((entry) => `${inner}${entry},\n`).join('')}${indent}${close}`;
}
