/** Why `npm start` could not run, with the fix. Shown without a stack. */
export class StartError extends Error {
  override readonly name = 'StartError';
}
