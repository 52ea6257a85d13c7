/** The operations whose answers can follow a JSON Schema. */
export type CheckedOperation = 'chat' | 'responses';

/** A text of an answer that has to be JSON. `name` is empty if there is only one. */
export type Content = { name: string; text: string; isCut: boolean };

type Members = Readonly<Record<string, unknown>>;

const toMembers = (value: unknown): Members => (typeof value === 'object' && value !== null ? (value as Members) : {});
const toList = (value: unknown): Members[] => (Array.isArray(value) ? value.map(toMembers) : []);
const toText = (value: unknown): string => (typeof value === 'string' ? value : '');

/**
 * The texts of an answer that a JSON Schema applies to, one for each choice or message. Not included: refusals, which
 * are explained in words, and choices that call tools, because the conversation continues.
 */
export function readContents(operation: CheckedOperation, answer: unknown): Content[] {
  const contents = operation === 'chat' ? choiceContents(toMembers(answer)) : outputContents(toMembers(answer));
  return contents.length === 1 ? contents.map((only) => ({ ...only, name: '' })) : contents;
}

function choiceContents({ choices }: Members): Content[] {
  return toList(choices).flatMap(({ finish_reason: reason, message }, index) => {
    const { content, refusal, tool_calls: calls, function_call: called } = toMembers(message);
    if (toText(refusal) !== '' || toList(calls).length > 0 || (called !== undefined && called !== null)) return [];
    const isCut = reason === 'length' || reason === 'content_filter';
    return [{ name: `choice ${index}`, text: toText(content), isCut }];
  });
}

function outputContents({ output, status }: Members): Content[] {
  const isCut = status === 'incomplete';
  const items = toList(output);
  const parts = items.filter(({ type }) => type === 'message').flatMap(({ content }) => toList(content));
  const texts = parts.filter(({ type }) => type === 'output_text').map(({ text }) => toText(text));
  // The limit was reached while the model was thinking.
  if (isCut && items.every(({ type }) => type === 'reasoning')) texts.push('');
  return texts.map((text, index) => ({ name: `text ${index}`, text, isCut }));
}
