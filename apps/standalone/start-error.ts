/** Why `npm start` cannot run, for the person who started it: what is wrong and what would be right, without a stack. */
export class StartError extends Error {
  override readonly name = 'StartError';
}
