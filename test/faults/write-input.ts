/** A batch file: `lines` requests, each with a custom_id and a `user` of its own, so that calls can be counted by line. */
export function writeInput(options: { name: string; lines: number; model: string; maxTokens?: number }): Buffer {
  const { name, lines, model, maxTokens: max_tokens } = options;
  const requests: string[] = [];
  for (let line = 1; line <= lines; line += 1) {
    requests.push(
      JSON.stringify({
        custom_id: customId(name, line),
        method: 'POST',
        url: '/v1/chat/completions',
        body: {
          model,
          max_tokens,
          user: `${name}/${line}`,
          messages: [{ role: 'user', content: `Say the number ${line}.` }],
        },
      }),
    );
  }
  return Buffer.from(`${requests.join('\n')}\n`);
}

/** Some contain characters that need care in JSON and in the database. */
function customId(name: string, line: number): string {
  switch (line % 7) {
    case 3:
      return `${name} "${line}" \\ / é 東京 🙂`;
    case 5:
      return `${name}\t${line}\u2028`;
    default:
      return `${name}-${line}`;
  }
}
