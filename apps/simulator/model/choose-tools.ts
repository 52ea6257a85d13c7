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
 * The tools that the model calls, in the order of the request's list: the chosen tool, or every tool whose name is a
 * word of the last user message (two names make two parallel calls). With `required` and no name in the message, one of
 * them is called. After a tool's result, only `required` or a chosen tool causes another call.
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
