import path from 'node:path';
import type { Running } from './standalone.ts';

/**
 * The output of `npm start` when everything runs: the address, on the first start the admin key, and a command to try.
 */
export function announce({ url, localUrl, keys, isFirstStart }: Running): string[] {
  const { adminKey } = keys;
  const ready = [`sluice ready ${url}/v1`, `  console    ${localUrl}/console`, `  reference  ${localUrl}/docs`];
  if (adminKey === undefined) {
    return [
      ...ready,
      'Call it with one of your gateway keys. If you lost them all: npm run sluice -- keys create-admin',
    ];
  }
  const { value, file } = adminKey;
  if (file === undefined) {
    return [
      ...ready,
      '',
      'Try it (SLUICE_BOOTSTRAP_KEY is the admin key):',
      '',
      tryLine(localUrl, '"authorization: Bearer $SLUICE_BOOTSTRAP_KEY"'),
      '',
    ];
  }
  if (isFirstStart) {
    const key = value.reveal();
    const where = `It is stored in ${path.resolve(file)}. You can move it elsewhere.`;
    return [
      ...ready,
      '',
      `admin key  ${key}`,
      where,
      '',
      'Try it:',
      '',
      tryLine(localUrl, `'authorization: Bearer ${key}'`),
      '',
    ];
  }
  return [...ready, '', 'Try it:', '', tryLine(localUrl, `"authorization: Bearer $(cat ${quoted(file)})"`), ''];
}

function tryLine(url: string, authorization: string): string {
  const body = JSON.stringify({
    model: '@simulator/sim-small',
    messages: [{ role: 'user', content: 'Say hello in one sentence.' }],
  });
  return `curl -sS ${quoted(`${url}/v1/chat/completions`)} -H ${authorization} -H 'content-type: application/json' -d '${body}'`;
}

/**
 * Quotes for a POSIX shell, and for zsh, which reads the brackets of an IPv6 address as a pattern. Also works in
 * "$(…)".
 */
const quoted = (text: string): string =>
  /^[\w.:/-]+$/.test(text) ? text : `'${text.replaceAll("'", String.raw`'\''`)}'`;
