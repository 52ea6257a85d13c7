export type Tool = { name: string; kind: 'function' | 'custom'; parameters: unknown };
export type ToolUse = 'none' | 'auto' | 'required' | { name: string };

type Question = {
  lastUserText: string;
  endsWithToolResult: boolean;
  tools: readonly Tool[];
  toolUse: ToolUse;
  parallelToolUse: boolean;
};

/**
 * Which tools the model calls, in the order of the request's list. A named tool is called; otherwise every tool whose
 * name stands in the last user message as a word (two named tools make two parallel calls). `required` without any
 * name in the message calls one of them; after a tool's result only `required` or a named tool calls again.
 */
export function chooseTools(question: Question, random: () => number): readonly Tool[] {
  const { tools, toolUse } = question;
  if (tools.length === 0 || toolUse === 'none') return [];
  if (typeof toolUse === 'object') return tools.filter((tool) => tool.name === toolUse.name).slice(0, 1);
  if (toolUse === 'auto' && question.endsWithToolResult) return [];
  const text = question.lastUserText.toLowerCase();
  const named = tools.filter((tool) => standsAsWord(text, tool.name.toLowerCase()));
  if (named.length > 0) return question.parallelToolUse ? named : named.slice(0, 1);
  return toolUse === 'required' ? tools.slice(Math.floor(random() * tools.length)).slice(0, 1) : [];
}

function standsAsWord(text: string, word: string): boolean {
  if (word === '') return false;
  for (let at = text.indexOf(word); at !== -1; at = text.indexOf(word, at + 1)) {
    if (!isWordUnit(text[at - 1]) && !isWordUnit(text[at + word.length])) return true;
  }
  return false;
}

function isWordUnit(unit: string | undefined): boolean {
  return unit !== undefined && /[a-z0-9_]/.test(unit);
}
