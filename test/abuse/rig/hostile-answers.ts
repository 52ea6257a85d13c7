const mebibyte = 1_048_576;

const usage = { prompt_tokens: 5, completion_tokens: 5, total_tokens: 10 };

/** A chat completion. `content` and `more` must be JSON and are inserted unchanged. */
const completion = (content: string, more = ''): string =>
  `{"id":"chatcmpl-1","object":"chat.completion","created":1700000000,"model":"any",${more}"choices":[{"index":0,` +
  `"message":{"role":"assistant","content":${content}},"finish_reason":"stop"}],"usage":${JSON.stringify(usage)}}`;

/** Valid JSON of about `sizeBytes`: an array that repeats one value. */
export function arrayOf(value: string, sizeBytes: number): Buffer {
  const each = `${value},`;
  const text = Buffer.alloc(Math.floor((sizeBytes - 2) / each.length) * each.length, each);
  return Buffer.concat([Buffer.from('['), text.subarray(0, text.length - 1), Buffer.from(']')]);
}

/** A small answer. */
export const smallCompletion = Buffer.from(completion('"Hello."'));

/** A chat completion with this many MiB of empty objects in a member that nobody reads. */
export function completionOfObjects(sizeMiB: number): Buffer {
  const [head = '', tail = ''] = completion('"Hello."', '"x":@,').split('@');
  return Buffer.concat([Buffer.from(head), arrayOf('{}', sizeMiB * mebibyte), Buffer.from(tail)]);
}

/** A chat completion with one text of this many MiB. */
export function completionOfText(sizeMiB: number): Buffer {
  const [head = '', tail = ''] = completion('"@"').split('@');
  return Buffer.concat([Buffer.from(head), Buffer.alloc(sizeMiB * mebibyte, 'word '), Buffer.from(tail)]);
}

/** An answer to an embeddings call with this many MiB of numbers, 3,072 in each vector. */
export function embeddingsOf(sizeMiB: number): Buffer {
  const vector = `{"object":"embedding","index":0,"embedding":[${'-0.0123456789,'.repeat(3_071)}0.5]}`;
  const list = arrayOf(vector, sizeMiB * mebibyte);
  return Buffer.concat([
    Buffer.from('{"object":"list","model":"any","data":'),
    list,
    Buffer.from(',"usage":{"prompt_tokens":5,"total_tokens":5}}'),
  ]);
}

/** One event of a stream, as small as those of models. */
export const smallEvent =
  'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"any",' +
  '"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n';
