/** Flags of Node for each process. */
export const nodeOptions: Readonly<Record<'api' | 'worker' | 'simulator', readonly string[]>> = {
  api: [],
  worker: [],
  simulator: [],
};
