import fc from 'fast-check';
import { expect, test } from 'vitest';
import { createFormScan } from './form-scan.ts';

const part = (disposition: string, content: string): string =>
  `--X\r\nContent-Disposition: form-data; ${disposition}\r\n\r\n${content}\r\n`;
const file = part('name="file"; filename="a.mp3"', 'name="model"\r\n\r\nnot-this\r\n-\r\n--Y');
const model = part('name="model"', '@slug/whisper-1');
const end = '--X--\r\n';

/** Pushes the form in pieces cut at these places. Returns the result and how much was read. */
function scan(form: string, { cuts = [], stopsAtFile = false }: { cuts?: number[]; stopsAtFile?: boolean } = {}) {
  const bytes = Buffer.from(form);
  const scanning = createFormScan('X', stopsAtFile);
  const ends = [...cuts.map((cut) => cut % (bytes.length + 1)), bytes.length].toSorted((a, b) => a - b);
  let from = 0;
  for (const to of ends) {
    const isDone = scanning.push(bytes.subarray(from, to));
    from = to;
    if (isDone) break;
  }
  const found = scanning.found();
  return { text: found?.text ?? null, there: found && bytes.toString('utf8', found.start, found.end), read: from };
}

test('the model is found wherever it stands, however the form is cut', () => {
  fc.assert(
    fc.property(
      fc.array(fc.nat(2_000), { maxLength: 12 }),
      fc.constantFrom(model + file + end, file + model + end, part('name="prompt"', 'Hi') + file + model + end),
      (cuts, form) => {
        expect(scan(form, { cuts })).toMatchObject({ text: '@slug/whisper-1', there: '@slug/whisper-1' });
      },
    ),
  );
});

test('before a file nothing of which is to be read, the model is found; after it, nothing more is looked at', () => {
  expect(scan(model + file + end, { stopsAtFile: true })).toMatchObject({ text: '@slug/whisper-1' });
  const start = file.indexOf('\r\n\r\n') + 4;
  expect(scan(file + model + end, { cuts: [start], stopsAtFile: true })).toEqual({
    text: null,
    there: null,
    read: start,
  });
});

test.each([
  ['no model', file + end],
  ['a file named model', part('name="model"; filename="a"', 'x') + end],
  ['a model that is too long', part('name="model"', 'x'.repeat(600)) + end],
  ['another form’s parts inside of a file', part('name="file"; filename="a"', model.replaceAll('X', 'Z')) + end],
  ['no form at all', `x${model}${end}`],
  ['headers without an end', `--X\r\n${'a: b\r\n'.repeat(2_000)}`],
  ['a model after the end', end + model],
])('a form with %s has none', (_what, form) => {
  expect(scan(form)).toMatchObject({ text: null });
});

test('names may be plain, and headers in any case', () => {
  const form = `--X\r\nContent-Type: text/plain\r\ncontent-disposition:form-data;name=model\r\n\r\nm\r\n${end}`;
  expect(scan(form)).toMatchObject({ text: 'm' });
});
