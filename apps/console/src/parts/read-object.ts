/** The value of a text that must be a JSON object, or a description of the problem with its position. */
export function readObject(text: string): { value: Record<string, unknown> } | { problem: string } {
  try {
    const value = JSON.parse(text) as unknown;
    if (typeof value === 'object' && value !== null && !Array.isArray(value))
      return { value: value as Record<string, unknown> };
    return { problem: 'This is valid JSON but not an object. Put it in braces: { … }.' };
  } catch (error) {
    return { problem: `This is not valid JSON: ${(error as Error).message}` };
  }
}
