import { asRecord } from '#libs/calls/upstream/usage.ts';
import type { CallOperation } from '#libs/calls/call.ts';

type Body = Readonly<Record<string, unknown>>;

/**
 * What the checks of one phase read; a check passes when it passes on each text. `said`: where words and patterns are
 * looked for. `measured`: what counts, JSON and URLs are judged on. An input is measured by its last message, as Portkey does; what is
 * looked for is looked for in all that the model reads as one text, because a text that is forbidden works as well from an
 * earlier message, from the words of the system, or from a tool: its description, the names
 * of its properties, the values that they may have. An output has one text for each choice,
 * the arguments of its tool calls among what is said.
 */
export type CallTexts = {
  said: readonly string[];
  measured: readonly string[];
  /** There is input that is no text (token ids): nothing can be said about it. */
  hasUnreadable: boolean;
};

export const noTexts: CallTexts = { said: [], measured: [], hasUnreadable: false };

/** The texts of a request's body. The depth of the body must be bounded. */
export function inputTexts(operation: CallOperation, body: Body): CallTexts {
  if (operation === 'chat') {
    const { messages, tools, functions, response_format: format, prediction } = body;
    const predicted = textOfContent(asRecord(prediction)['content']);
    return conversationTexts(listOf(messages).map(asRecord), [predicted], [tools, functions, format]);
  }
  if (operation === 'responses') {
    const { input, instructions, tools, prompt, text } = body;
    const items = itemsOf(input);
    const variables = Object.values(asRecord(asRecord(prompt)['variables']));
    const before = [...itemsOf(instructions).flatMap(saidIn), ...variables.map(textOfVariable)];
    return conversationTexts(items, [...before, ...items.flatMap(saidByTools)], [tools, asRecord(text)['format']]);
  }
  const input = operation === 'completions' || operation === 'images' ? body['prompt'] : body['input'];
  if (input === undefined || input === null) return noTexts;
  const parts = Array.isArray(input) ? (input as unknown[]) : [input];
  const texts = parts.filter((part) => typeof part === 'string');
  const { suffix } = body;
  const said = operation === 'completions' && typeof suffix === 'string' ? [...texts, suffix] : texts;
  return { said, measured: texts, hasUnreadable: texts.length < parts.length };
}

/** The texts of a whole answer; none of an answer without choices (embeddings). */
export function outputTexts(operation: CallOperation, body: Body): CallTexts {
  const outputs =
    operation === 'responses'
      ? [listOf(body['output']).map(asRecord)]
      : listOf(body['choices'])
          .map(asRecord)
          .map(({ message, text }) => [typeof text === 'string' ? { content: text } : asRecord(message)]);
  return {
    said: outputs.map((messages) => messages.flatMap(saidIn).join('\n')),
    measured: outputs.map((messages) => messages.map(textOfMessage).filter(Boolean).join('\n')),
    hasUnreadable: false,
  };
}

/** `beside`: values in which every text counts, such as the definitions of tools. */
function conversationTexts(
  messages: readonly Body[],
  before: readonly string[],
  beside: readonly unknown[],
): CallTexts {
  const said = [...before, ...messages.flatMap(saidIn), ...beside.flatMap(textsIn)].filter((text) => text !== '');
  const last = messages.at(-1);
  return {
    said: said.length === 0 ? [] : [said.join('\n')],
    measured: last === undefined ? [] : [textOfMessage(last)],
    hasUnreadable: false,
  };
}

/** What a message, or an item of a response, says: its text, what it calls and with which arguments, and what came of that. */
function saidIn(message: Body): string[] {
  const { tool_calls: toolCalls, function_call: functionCall, refusal, output, summary } = message;
  const calls = [...listOf(toolCalls), functionCall, message].map(asRecord);
  const called = calls.flatMap((call) => {
    const { name, arguments: given, input } = { ...call, ...asRecord(call['function']), ...asRecord(call['custom']) };
    return [name, given, input];
  });
  const texts = [textOfMessage(message), refusal, textOfContent(output), textOfContent(summary), ...called];
  return texts.filter((text) => typeof text === 'string').filter((text) => text !== '');
}

/** The value of a variable of a stored prompt is a text, or a part of a message. */
const textOfVariable = (value: unknown): string => textOfContent(typeof value === 'string' ? value : [value]);

// What tools of the provider did, as an item of an input tells it: code, what a shell wrote, what was found in files.
const toolMembers = ['action', 'code', 'outputs', 'output', 'results', 'queries', 'operation', 'error'];

const saidByTools = (item: Body): string[] =>
  toolMembers.flatMap((name) => textsIn(item[name])).filter((text) => !/^data:[\w/+.-]+;base64,[\w+/=-]*$/.test(text));

/** What `/v1/responses` takes as a text or as a list of items. */
const itemsOf = (value: unknown): Body[] =>
  typeof value === 'string' ? [{ content: value }] : listOf(value).map(asRecord);

const textOfMessage = ({ content }: Body): string => textOfContent(content);

/** Of parts, their texts in lines. */
function textOfContent(content: unknown): string {
  if (typeof content === 'string') return content;
  return listOf(content)
    .map(asRecord)
    .map(({ text, refusal }) => text ?? refusal)
    .filter((text) => typeof text === 'string')
    .join('\n');
}

// Names and types of OpenAI's tools and of JSON Schema, which every caller uses: a word that is one of them is not the
// caller's, wherever it stands.
const wordsOf = (text: string): ReadonlySet<string> => new Set(text.split(/\s+/));
const specifiedNames = wordsOf(
  `type function custom name description parameters strict format json_schema schema title properties required items
  prefixItems enum const default examples nullable anyOf oneOf allOf not if then else additionalProperties
  patternProperties propertyNames minimum maximum exclusiveMinimum exclusiveMaximum multipleOf minLength maxLength pattern
  minItems maxItems uniqueItems contains minProperties maxProperties additionalItems $ref $defs definitions $schema $id
  $anchor $comment deprecated readOnly writeOnly text image_url file_id syntax definition grammar`,
);
const specifiedTypes = wordsOf(
  `object array string number integer boolean null function custom grammar text json_object json_schema input_text
  input_image input_file web_search web_search_preview file_search code_interpreter image_generation mcp local_shell
  computer_use_preview`,
);

/** Every text inside a value, however deep, and the names of its members; but not the words of JSON Schema itself. */
function textsIn(value: unknown): string[] {
  if (typeof value === 'string') return [value];
  if (Array.isArray(value)) return value.flatMap(textsIn);
  if (typeof value !== 'object' || value === null) return [];
  return Object.entries(value).flatMap(([name, member]) => [
    ...(specifiedNames.has(name) ? [] : [name]),
    ...(name === 'type' ? textsIn(member).filter((text) => !specifiedTypes.has(text)) : textsIn(member)),
  ]);
}

const listOf = (value: unknown): readonly unknown[] => (Array.isArray(value) ? value : []);
