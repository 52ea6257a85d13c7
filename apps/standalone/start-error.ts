/** Why `npm start` could not run, with what to do about it. Shown without a stack. */
export class StartError extends Error {
  override readonly name = 'StartError';
}
